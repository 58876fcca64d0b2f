"""Settings of the site that `make docs` builds from this folder."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from torchprof_hooks.version import __version__  # noqa: E402

project = "torchprof_hooks"
author = "the torchprof_hooks developers"
release = version = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstring_style",
    "pages_of_the_project",
]
exclude_patterns = ["samples", "extra"]
source_suffix = {".md": "markdown"}

# Pages are Markdown, and links to headings are those that a viewer of Markdown has.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Names in single backticks are links where there is something of that name; in a
# docstring most are parameters, which have none.
default_role = "py:obj"
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    # What is not ours is not in this site's index, and the site is built offline.
    ("py:.*", r"(?!torchprof_hooks\b).*"),
    # Bases of what is public.
    ("py:class", r"torchprof_hooks\.profiles\.data\.ProfileData"),
    ("py:class", r"torchprof_hooks\.reportable\.(Reportable|ProfileReports)"),
    # Variables of types, and the dicts that summaries are made of.
    ("py:class", r".*\.([A-Z]|Self|Target|Class|Summary)"),
]

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = True
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"torchprof_hooks {__version__}"
html_static_path = ["static"]
# llms.txt: what the pages are, for language models.
html_extra_path = ["extra"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
highlight_language = "python"
