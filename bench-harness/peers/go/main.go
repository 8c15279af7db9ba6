// A goroutine and a buffered channel for each key, GOMAXPROCS as many as there are workers.
//
// Arguments: tasks keys producers workers rounds shape parameter. Prints one JSON object.
// A key's channel and goroutine are made when the key is first used; the channel's bound is 1,024
// tasks, and less where there are so many keys that their buffers would take gigabytes. The producers are goroutines too.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mostWaiting     = 1 << 24
	leastOfAChannel = 16
	mostOfAChannel  = 1024
)

func boundOf(keys int) int {
	bound := mostWaiting / keys
	if bound > mostOfAChannel {
		return mostOfAChannel
	}
	if bound < leastOfAChannel {
		return leastOfAChannel
	}
	return bound
}

// random is splitmix64, as in workload.rs.
type random struct{ state uint64 }

func (r *random) bits() uint64 {
	r.state += 0x9E3779B97F4A7C15
	z := r.state
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

func (r *random) below(n uint64) uint64 {
	high, _ := bits.Mul64(r.bits(), n)
	return high
}

func (r *random) unit() float64 { return float64(r.bits()>>11) / (1 << 53) }

type item struct{ key, number uint32 }

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

func makeStreams(tasks, keys, producers int, shape string, parameter float64) [][]item {
	r := random{42}
	var cumulative []float64
	if shape == "zipf" {
		sum := 0.0
		for rank := 1; rank <= keys; rank++ {
			sum += math.Pow(float64(rank), -parameter)
			cumulative = append(cumulative, sum)
		}
	}
	step := keys*5/8 + 1
	for gcd(step, keys) != 1 {
		step++
	}
	numbers := make([]uint32, keys)
	streams := make([][]item, producers)
	for i := 0; i < tasks; i++ {
		var key int
		switch {
		case shape == "zipf":
			at := r.unit() * cumulative[keys-1]
			rank := sort.Search(keys, func(i int) bool { return cumulative[i] > at })
			if rank > keys-1 {
				rank = keys - 1
			}
			key = rank * step % keys
		case shape == "hot" && r.unit() < parameter:
			key = 0
		default:
			key = int(r.below(uint64(keys)))
		}
		p := key % producers
		streams[p] = append(streams[p], item{uint32(key), numbers[key]})
		numbers[key]++
	}
	return streams
}

type state struct {
	accumulator, violations uint64
	due                     uint32
}

var sink uint64

func (s *state) run(number uint32, rounds uint64) {
	if number != s.due {
		s.violations++
	}
	s.due = number + 1
	s.accumulator = (bits.RotateLeft64(s.accumulator, 5) ^ uint64(number)) * 0x9E3779B97F4A7C15
	x := uint64(1)
	for i := uint64(0); i < rounds; i++ {
		x = x*6364136223846793005 + 1
	}
	if x == 0 {
		// Never; it keeps the loop from being thrown away.
		atomic.AddUint64(&sink, x)
	}
}

func main() {
	if len(os.Args) != 8 {
		fmt.Fprintln(os.Stderr, "usage: program tasks keys producers workers rounds shape parameter")
		os.Exit(2)
	}
	var n [5]int
	for i := range n {
		value, err := strconv.Atoi(os.Args[i+1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		n[i] = value
	}
	parameter, err := strconv.ParseFloat(os.Args[7], 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	tasks, keys, producers, workers, rounds := n[0], n[1], n[2], n[3], uint64(n[4])
	streams := makeStreams(tasks, keys, producers, os.Args[6], parameter)
	runtime.GOMAXPROCS(workers)

	bound := boundOf(keys)
	states := make([]state, keys)
	channels := make([]chan uint32, keys)
	var running, producing sync.WaitGroup
	produce := func(stream []item) {
		for _, it := range stream {
			channel := channels[it.key]
			if channel == nil {
				channel = make(chan uint32, bound)
				channels[it.key] = channel
				own := &states[it.key]
				running.Add(1)
				go func() {
					defer running.Done()
					for number := range channel {
						own.run(number, rounds)
					}
				}()
			}
			channel <- it.number
		}
		// Its keys are this producer's own.
		for key := int(stream[0].key) % producers; key < keys; key += producers {
			if channels[key] != nil {
				close(channels[key])
			}
		}
	}
	start := time.Now()
	for _, stream := range streams {
		if len(stream) == 0 {
			continue
		}
		producing.Add(1)
		stream := stream
		go func() {
			defer producing.Done()
			produce(stream)
		}()
	}
	producing.Wait()
	running.Wait()
	seconds := time.Since(start).Seconds()

	var ran, violations, sum uint64
	for i := range states {
		ran += uint64(states[i].due)
		violations += states[i].violations
		sum += states[i].accumulator
	}
	line, err := json.Marshal(map[string]interface{}{
		"tasks": ran, "seconds": seconds, "violations": violations, "sum": sum,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(line))
}
