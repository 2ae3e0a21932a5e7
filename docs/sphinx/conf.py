"""How the documentation becomes pages: `make docs`.

The source is the whole project, so that links between README, docs/ and the other folders mean the same in the pages
as in the files. Nothing that a page shows comes from elsewhere: it can be read without a network.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the directives beside this file

import distlfm

# Names that are imported when first used are not in `dir`, which autodoc reads.
for name in distlfm.__all__:
    setattr(distlfm, name, getattr(distlfm, name))

project = "distlfm"
author = "The distlfm authors"
project_copyright = author
version = release = distlfm.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "notebooks", "reference_of_keys", "reference_of_verbs"]
root_doc = "docs/contents"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/**",
    "docker/*.md",
    "slurm/*.md",
]
exclude_patterns = [".*", "build", "runs", "**/__pycache__"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# A link to a page or a heading that does not exist is a warning, and warnings are errors. Types in signatures are not
# looked up: those of other libraries would need the network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "groupwise", "exclude-members": "model_config"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
default_role = "code"

html_theme = "furo"
html_title = f"distlfm {version}"
html_extra_path = ["start"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
