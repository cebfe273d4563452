"""Renders a verdict: as JSON (``document.py``), terminal text (``brief.py``, ``text.py``), Markdown, and an HTML page.

Claims become sentences in :mod:`trackside.wording`. Nothing here computes a verdict.
"""
