#!/bin/bash
# Starts Slurm on this machine alone, as root: munged, slurmctld and slurmd, with all state in one folder.
#
#   apt-get install --no-install-recommends munge slurmctld slurmd slurm-client
#   benchmarks/slurm/node.sh start FOLDER && export SLURM_CONF=FOLDER/slurm.conf
#   benchmarks/slurm/node.sh stop FOLDER
set -euo pipefail
action=$1 folder=$(realpath -m "$2") host=$(hostname -s)
if [ "$action" = stop ]; then
  for name in slurmd slurmctld munged; do
    if [ -f "$folder/$name.pid" ]; then kill "$(cat "$folder/$name.pid")" || true; fi
  done
  exit
fi
mkdir -p "$folder"/{state,spool,munge}
chmod 700 "$folder/munge"
dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
chmod 400 "$folder/munge/key"
cat > "$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmctldPort=26817
SlurmdPort=26818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=1000000
ReturnToService=2
KillWait=30
MpiDefault=none
OverTimeLimit=0
MinJobAge=300
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
export SLURM_CONF=$folder/slurm.conf
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
slurmctld -c
slurmd -c
for _ in $(seq 60); do
  if sinfo -h -o %T 2> /dev/null | grep -qE '^(idle|mixed|allocated)$'; then exit 0; fi
  sleep 1
done
echo "the node did not become idle; see $folder/slurmctld.log and $folder/slurmd.log" >&2
exit 1
