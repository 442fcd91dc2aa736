"""The gateway as a server: its desk of admin routes and stored state, and its life as a process."""
