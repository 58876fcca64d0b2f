"""The report of a whole program, section by section; docs/exit_report.md shows them as
they are printed."""
