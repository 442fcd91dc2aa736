"""Models that are on this machine's disks, whichever program put them there."""
