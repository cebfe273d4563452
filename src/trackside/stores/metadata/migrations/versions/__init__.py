"""One file per revision, forward only. A published one never changes; tests/stores/metadata/revisions keeps the tables
of each."""
