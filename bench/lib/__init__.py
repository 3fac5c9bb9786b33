"""Modules of bench/serve and bench/move."""
