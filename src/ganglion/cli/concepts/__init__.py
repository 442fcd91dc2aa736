"""`ganglion concepts`: train, judge and share concept vectors."""
