"""WHAT DOES A LOG LINE MEAN: one fast pass (:mod:`.scan`), then one file per framework or system.

A module here that defines ``PARSER`` is registered by being there.
"""
