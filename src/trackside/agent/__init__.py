"""The node agent: on-node collection, one file per source (:mod:`.sources`), sent to receivers by :mod:`.delivery`.

It installs alone: nothing here imports more of Trackside than the catalog, the model, the log scan and the settings.
"""
