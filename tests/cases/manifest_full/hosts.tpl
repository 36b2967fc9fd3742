${{ join("\n", fleet.trainers[*].host) }} ${{ member.index }}
