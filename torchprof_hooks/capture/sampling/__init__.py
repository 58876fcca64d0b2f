"""Where a step ends; which steps are looked into, and how closely."""
