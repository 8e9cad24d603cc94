import json
from harbor.models.trajectories import Trajectory
n=0
for l in open('/tmp/atif28/rand_a.jsonl'):
    Trajectory.model_validate(json.loads(l)); n+=1
print(n,'harbor trajectories ok')
