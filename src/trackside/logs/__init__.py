"""WHAT A LOG LINE MEANS: one fast pass over the bytes (:mod:`.scan`), then one module per framework or system.

A module here that defines ``PARSER`` is registered because it is in this package.
"""
