"""What an experiment says: tables, and whether shapes are the paper's."""


class Said:
    def __init__(self):
        self.lines: list[str] = []
        self.is_right = True

    def table(self, title: str, unit: str, rows: dict[str, dict], first: str = "") -> None:
        """A column for each key that a row has, in the order in which they come."""
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        self.say("", f"**{title}**, {unit}", "", f"| {first} | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|")
        for name, row in rows.items():
            self.say(f"| {name} | " + " | ".join(f"{row[each]:.3g}" if each in row else "" for each in columns) + " |")

    def judge(self, what: str, holds: bool, found: str) -> None:
        self.is_right &= holds
        self.say("", f"{'As in the paper' if holds else 'Otherwise than in the paper'}: {what} ({found}).")

    def say(self, *lines: str) -> None:
        self.lines.extend(lines)
        print("\n".join(lines), flush=True)
