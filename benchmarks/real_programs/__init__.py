"""Programs that other people wrote, or write with other people's libraries."""
