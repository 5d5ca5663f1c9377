"""What a program does with datasets: each function is a command. The command line calls these."""
