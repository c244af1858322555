"""Sphinx's settings for the site. make_site.py lays out the pages and calls Sphinx."""

project = "tinytrain"
html_title = "tinytrain"
extensions = ["myst_nb"]  # reads Markdown and notebooks

# Notebooks are shown with the outputs that they store. Nothing is ever run.
nb_execution_mode = "off"
nb_render_markdown_format = "myst"  # also what cells printed as Markdown: cards, tables with links
nb_ipywidgets_js = {}  # widgets are stored as pictures, so nothing has to be loaded for them

myst_heading_anchors = 3
myst_heading_slug_func = "make_site.anchor"

# The lines for Colab begin with ! and %, which is no Python: they are coloured all the same.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_use_index = False  # it would be empty
html_copy_source = False  # the repository has it
html_show_sphinx = False
