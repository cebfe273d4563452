"""WHAT DOES THIS FILE SAY: one file per format, chosen by content (:mod:`.detect`).

A module here that defines ``FORMAT`` (or a tuple ``FORMATS``) is registered by being there.
"""
