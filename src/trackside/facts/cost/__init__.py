"""What a run held, and what was done with it, in GPU-hours; what its fault cost is the verdict's to say."""
