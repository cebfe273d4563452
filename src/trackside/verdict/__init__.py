"""WHY: asks are planned and fetched once, families judge, the arbiter names the first cause."""
