# SPDX-License-Identifier: GPL-2.0-or-later
# What is done with it: the commands that need no daemon, then a lab, a daemon, and a flow that it steers.
jobs=()
ended() {
  for each in "${jobs[@]}"; do kill "$each" || true; done
  wait
  jobs=()
}
trap ended EXIT

atfnd --version
atfnctl --version
atfnd check
atfnd check /trial/atfnd.yaml
atfnd doctor || test $? = 1

atfnd lab up --queues 2
atfnd run --nic lab:lab --arm lab:lab --config /trial/atfnd.yaml &
jobs+=($!)
daemon=$!
timeout 60 bash -c 'until atfnctl status; do sleep 0.5; done' || exit 1

# One thread reads what eight connections bring. RSS delivers some of them on the other CPU.
nsenter --net=/run/netns/lab-host python3 /trial/talker.py echo tcp 10.9.0.1 7000 < <(echo pin 0; exec sleep 120) &
jobs+=($!)
timeout 30 nsenter --net=/run/netns/lab-host bash -c 'until (exec 3<>/dev/tcp/10.9.0.1/7000) 2>&-; do sleep 0.2; done'
nsenter --net=/run/netns/lab-peer python3 /trial/talker.py talk tcp 10.9.0.1 7000 10.8.0.1 40000 \
  < <(for port in {40001..40007}; do echo "also $port"; sleep 0.1; done; exec sleep 120) &
jobs+=($!)
timeout 60 bash -c 'until atfnctl flows --state steered --json | grep -q 10.8.0.1; do sleep 0.5; done' || steered=no
atfnctl flows
test -z "${steered-}"

kill "$daemon"
wait "$daemon"
atfnd restore | grep -w 'filters\? deleted'
ended
trap - EXIT
atfnd lab down
test -z "$(ls -A /run/netns)"
