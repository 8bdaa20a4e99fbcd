"""Which process does what when several train one model: pipeline schedules, summed gradients."""
