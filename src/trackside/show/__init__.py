"""Renders a verdict: as JSON (``document.py``), terminal text (``brief.py``, ``text.py``), Markdown, and an HTML page.

``wording.py`` turns claims into sentences. Nothing here computes a verdict.
"""
