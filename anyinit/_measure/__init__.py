"""The same graph run on a real batch: compared with the plan, or correcting it."""
