"""The verdict as one self-contained HTML page. ``page.py`` fills the template ``page.html``."""
