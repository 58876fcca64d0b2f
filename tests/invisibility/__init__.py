"""Programs compute, and leave behind, what they do without us."""
