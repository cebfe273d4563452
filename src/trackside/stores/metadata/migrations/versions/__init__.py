"""One file a revision, forward only. A published one never changes; tests/stores/metadata/revisions keeps what each
made.
"""
