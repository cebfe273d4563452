"""Renders a verdict: sentences, the published JSON document, terminal text, Markdown, HTML. Computes no verdict."""
