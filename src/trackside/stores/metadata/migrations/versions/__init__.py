"""One file a revision, forward only. A published one never changes; tests/archives keeps what each made."""
