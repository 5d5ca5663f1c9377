"""A push in parts: a plan, tasks that many machines do in any order, and one commit."""
