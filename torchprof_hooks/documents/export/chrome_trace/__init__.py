"""Chrome traces: what chrome://tracing and Perfetto open.

The format is Google's Trace Event Format; see its public description of that name.
"""
