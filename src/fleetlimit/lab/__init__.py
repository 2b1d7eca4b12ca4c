"""`fleetlimit lab`: a page to try limits on, run by the real algorithms on a simulated clock."""
