"""What a run held and what its fault cost, in GPU-hours."""
