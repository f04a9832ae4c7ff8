"""The systems the suite is compared with. Each says in its first lines what it is and where it comes from."""
