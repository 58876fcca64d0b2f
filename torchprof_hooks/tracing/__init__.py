"""Chrome traces of single steps, and the files that they are written to."""
