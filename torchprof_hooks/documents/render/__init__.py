"""Documents as text, as a page for a browser, as JSON and as CSV."""
