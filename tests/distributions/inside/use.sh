# SPDX-License-Identifier: GPL-2.0-or-later
# What is done with it: the commands that need no daemon, then a lab, a daemon, and a flow that it steers.
jobs=()
said=$(mktemp)
ended() {
  for each in "${jobs[@]}"; do kill "$each" || true; done
  wait
  jobs=()
  cat "$said"
}
trap ended EXIT

# A process with sockets in a namespace of the lab: `tell` has it do something, and waits for its answer.
talker() {
  local pipes
  pipes=$(mktemp -d)
  mkfifo "$pipes/to" "$pipes/from"
  PYTHONPATH=/trial nsenter --net="/run/netns/lab-$1" python3 -m tests.talker "${@:2}" <"$pipes/to" >"$pipes/from" &
  jobs+=($!)
  exec {to}>"$pipes/to" {from}<"$pipes/from"
  rm -r "$pipes"
  read -r -t 30 <&"$from"
}
tell() {
  echo "$*" >&"$to"
  read -r -t 30 <&"$from"
}

atfnd --version
atfnctl --version
atfnd check
atfnd check /trial/atfnd.yaml
atfnd doctor || test $? = 1

atfnd lab up --queues 2
atfnd run --nic lab:lab --arm lab:lab --config /trial/atfnd.yaml >"$said" 2>&1 &
jobs+=($!)
daemon=$!
timeout 60 grep -qm1 ' watches ' <(tail -n +1 -f --pid="$daemon" "$said")
atfnctl status

# One thread reads what eight connections bring. RSS delivers some of them on the other CPU.
talker host echo tcp 10.9.0.1 7000
tell pin 0
talker peer talk tcp 10.9.0.1 7000 10.8.0.1 40000
for port in {40001..40007}; do tell also "$port"; done
timeout 60 grep -qm1 10.8.0.1 <(atfnctl events --follow --kind insert) || steered=no
atfnctl flows
test -z "${steered-}"

kill "$daemon"
wait "$daemon"
atfnd restore | grep -w 'filters\? deleted'
ended
trap - EXIT
atfnd lab down
test -z "$(ls -A /run/netns)"
