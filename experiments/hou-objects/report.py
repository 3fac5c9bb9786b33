"""The report of an experiment: tables, and checks whether results have the shape of the paper's."""


class Report:
    def __init__(self):
        self.lines: list[str] = []
        self.all_passed = True

    def table(self, title: str, unit: str, rows: dict[str, dict], first: str = "") -> None:
        """Adds a table with a column for each key of the rows, in order of appearance."""
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        self.add("", f"**{title}**, {unit}", "", f"| {first} | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|")
        for name, row in rows.items():
            self.add(f"| {name} | " + " | ".join(f"{row[each]:.3g}" if each in row else "" for each in columns) + " |")

    def check(self, claim: str, passed: bool, values: str) -> None:
        self.all_passed &= passed
        self.add("", f"{'As in the paper' if passed else 'Different from the paper'}: {claim} ({values}).")

    def add(self, *lines: str) -> None:
        self.lines.extend(lines)
        print("\n".join(lines), flush=True)
