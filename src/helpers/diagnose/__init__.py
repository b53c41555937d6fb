"""What limits decode: observations from every stage and file, the table of tests, ranked causes."""
