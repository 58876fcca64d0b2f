"""Chrome traces, which chrome://tracing and Perfetto open.

The format is Google's "Trace Event Format", described in the document of that name.
"""
