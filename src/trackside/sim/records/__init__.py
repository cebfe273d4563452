"""What the scheduler, the kernel and the job itself leave behind: one file a source."""
