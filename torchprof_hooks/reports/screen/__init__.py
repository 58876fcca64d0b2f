"""The first screen of a report: what one wants to know, in forty lines; and what a
terminal shows besides. The pages in docs/ begin with one, as it is printed."""
