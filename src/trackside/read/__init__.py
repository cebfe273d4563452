"""Readers of input files: one module per format, chosen by content (:mod:`.detect`).

A module of ``formats/`` that defines ``FORMAT`` (or a tuple ``FORMATS``) is registered automatically.
"""
