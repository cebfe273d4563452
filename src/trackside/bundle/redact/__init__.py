"""Redaction: replaces names of people, machines and projects with placeholders, the same one everywhere.

Start with ``redactor.py``. Each other module holds kinds of names (:class:`trackside.bundle.redact.kind.NameKind`): a
kind learns its names from all texts, gives each a placeholder, then replaces them.
"""
