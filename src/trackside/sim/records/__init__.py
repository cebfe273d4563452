"""What the scheduler, the kernel and the job itself leave behind: one module per source."""
