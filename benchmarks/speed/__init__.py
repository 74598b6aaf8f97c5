"""Speed, memory and costs on CPUs."""
