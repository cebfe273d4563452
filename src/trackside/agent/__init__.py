"""WHAT DOES THIS NODE GIVE OFF: on-node collection, one file a source (:mod:`.sources`), sent on by :mod:`.out`.

It installs alone: nothing here imports more of Trackside than the catalogue, the model, the log scan and the settings.
"""
