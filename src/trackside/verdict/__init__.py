"""WHY: facts are resolved once, families judge them, the arbiter names the first cause."""
